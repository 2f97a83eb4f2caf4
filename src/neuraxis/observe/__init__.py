"""What happened, made visible: runs collected, told as text and drawn.

`neuraxis.observe.patterns` runs every communication pattern and shows what each rank held before and after.
"""
