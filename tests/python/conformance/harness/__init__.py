"""What runs cases natively and here, and compares what they leave.

placing           copies of samples: strides, offsets and aliasing kept
samples           of an entry of an operator database
pagers            what moves memory while a case runs
compare           what an action left behind, and how two of them differ
known_differences every difference that may be, with its reason
suite             runs cases, consults the table, counts
counting          the counts, and the tables of RESULTS.md
selection         which cases the default run takes, and parts of a full run
gradients         whose sums have the same order on every device
parity_cases      samples of all databases, to run on any device
recorded          which ops and kernels run
"""
