etalon_test(NAME ckpt_damage KIND fault RANKS 3 LIBS ckpt TIMEOUT 60)
etalon_test(NAME ckpt_abort KIND fault LIBS ckpt TIMEOUT 60)
string(REPLACE ";" " " ckpt_mpirun "${ETALON_MPIRUN}")
target_compile_definitions(test_ckpt_abort PRIVATE MPIRUN="${ckpt_mpirun}")
