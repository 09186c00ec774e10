etalon_test(NAME train_gradient KIND unit LIBS train straight)
