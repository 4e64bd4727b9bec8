"""What a Google-style docstring says of a tool."""

import inspect

from refold.tools.signature import first_paragraph, parameter_descriptions

DOCSTRING = inspect.cleandoc("""Forecast for a city,
    in °C.

    More than a model needs.

    Args:
        city: Which city: its English name,
            and the country where there are two.

        days (dict[str, tuple(int)], optional): How many days.
        *rest: Cities beside it.
        silent:

    Returns:
        text: one line.
    """)


def test_the_first_paragraph_is_the_description_on_one_line() -> None:
    assert first_paragraph(DOCSTRING) == "Forecast for a city, in °C."


def test_the_args_section_describes_parameters_and_ends_where_the_next_section_begins() -> None:
    assert parameter_descriptions(DOCSTRING) == {
        "city": "Which city: its English name, and the country where there are two.",
        "days": "How many days.",
        "rest": "Cities beside it.",
    }


def test_a_docstring_may_be_missing_or_say_nothing_of_parameters() -> None:
    for docstring in (None, "", "   \n  "):
        assert first_paragraph(docstring) == ""
        assert parameter_descriptions(docstring) == {}
    assert parameter_descriptions("Only a sentence. Args: none.") == {}


def test_an_args_section_right_at_the_beginning_leaves_no_description() -> None:
    assert first_paragraph("Args:\n    city: Where.") == ""
    assert parameter_descriptions("Args:\ncity: Where.\ndays: When.") == {"city": "Where.", "days": "When."}


def test_text_before_the_first_entry_belongs_to_no_parameter() -> None:
    assert parameter_descriptions("Sum.\n\nArgs:\n    as usual\n    a: First.\n    b: Second.") == {
        "a": "First.",
        "b": "Second.",
    }


def test_what_is_not_unicode_is_replaced() -> None:
    assert first_paragraph("Broken \ud83d.") == "Broken \ufffd."
