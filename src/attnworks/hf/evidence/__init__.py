"""Evidence on a model of Hugging Face from one forward pass: its attention layers, their heads, its blocks."""
