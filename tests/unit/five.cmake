etalon_test(NAME schedule KIND unit LIBS schedule)
etalon_test(NAME five_documents KIND unit LIBS train)
