exec("{{EXIT_CASE}}")
