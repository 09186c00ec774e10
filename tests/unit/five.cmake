etalon_test(NAME schedule KIND unit LIBS schedule)
etalon_test(NAME schedule_stages KIND unit LIBS train)
etalon_test(NAME five_documents KIND unit LIBS train)
etalon_test(NAME five_replicas KIND unit RANKS 2 LIBS train)
