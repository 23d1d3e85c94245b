"""The paper's figures and tables, its published numbers and its point experiments.

`pombu reproduce` runs what is here; nothing but the command line imports it.
"""
