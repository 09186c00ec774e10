etalon_test(NAME device KIND unit LIBS device)
