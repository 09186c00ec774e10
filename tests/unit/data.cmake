etalon_test(NAME data_files KIND unit LIBS data)
etalon_test(NAME data_sampler KIND unit LIBS data)
