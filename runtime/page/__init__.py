"""The page on which a log is looked at: served by `refold inspect`, or as one file by `refold show --html`.

Read `frames` first: a session as rows of what each event changed, of which the page shows any version without asking
again. `spans` are its bars on a time line, `beside` is what memories and breakers held meanwhile, and `overview` the
list of sessions. `pages` keeps them for a log that may grow, `one_file` writes them into one file, and `reports` are
what a replay found; `refold.serving` serves them. What is shown comes from the functions behind the commands' `--json`.
In `static` lies what runs in the browser: ES modules without a build step.
"""
