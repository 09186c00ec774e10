foreach(lint layers sizes words format shell selftest)
  etalon_test(NAME lint_${lint} KIND lint COMMAND bash ${CMAKE_SOURCE_DIR}/tests/lint/${lint}.sh ${CMAKE_SOURCE_DIR})
endforeach()
etalon_test(NAME lint_readme KIND lint COMMAND bash ${CMAKE_SOURCE_DIR}/tests/lint/readme.sh $<TARGET_FILE:etalon> ${CMAKE_SOURCE_DIR}/README.md)
