etalon_test(NAME ckpt KIND unit RANKS 4 LIBS ckpt TIMEOUT 30)
