etalon_test(NAME schedule KIND unit LIBS schedule)
