"""Some sessions of a log tried again with today's agent and its real model: was my new prompt worse?

Read `trial` first: it chooses sessions and finds where each first differs (`beginning`), and has a child
process go on from there (`going_on`), which asks the model through its parent. `report` says what came of
it, `rules` judges it, and `page` writes it as HTML.
"""
