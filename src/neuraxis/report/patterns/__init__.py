"""The communication patterns of `neuraxis patterns`: real ranks run each one, and a page shows the data that moved.

Modules in reading order: `model` (data of a run), `definitions` (the correct result of each pattern), `catalogue`
(titles and explanations), `rank` (the code of one rank), `collection` (starts the ranks, collects and checks their
results), `text` and `page` (output), `diagram` (drawings).
"""
