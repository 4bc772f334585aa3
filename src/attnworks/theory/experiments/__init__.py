"""The six experiments of the theory: each computes rows, shows them in tables and sentences, and draws them."""
