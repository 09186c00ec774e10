etalon_test(NAME train_gradient KIND unit LIBS train straight)
etalon_test(NAME train_state KIND unit RANKS 2 LIBS train)
etalon_test(NAME train_lr KIND unit LIBS train)
