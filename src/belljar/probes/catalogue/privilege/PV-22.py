answered, note = answers_32(20, 20)
conclude(answered and "32-bit getpid() answered", note)
