"""Which verbs work on which model types: a sweep over tiny models, with checks of the numbers.

python -m attnworks.hf.coverage --out coverage.json --page docs/families.md
"""
