"""Cut heads out of attention layers of Hugging Face models: which columns go, how, and a proof of the result."""
