"""Every operator, module and optimizer against the native device, bit for bit.

placing           copies of samples: strides, offsets and aliasing kept
samples           of an entry of an operator database
pagers            what moves memory while a case runs
compare           what an action left behind, and how two of them differ
known_differences every difference that may be, with its reason
suite             runs cases, consults the table, counts
counting          the counts, and the tables of RESULTS.md
selection         which cases the default run takes, and parts of a full run
"""
