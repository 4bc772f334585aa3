"""Files with the weights of a model, in the formats that people have: one reader per format, behind one contract."""
