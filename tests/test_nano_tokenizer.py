"Properties of nano's tokenizer over random text."
from hypothesis import given, settings
from hypothesis import strategies as st

from oaml.nano.tokenizer import PIECES, SPECIAL_TOKENS, nano_tokenizer

tokenizer = nano_tokenizer()
fragments = st.one_of(st.text(), st.sampled_from([*PIECES, *SPECIAL_TOKENS, "0.42", "x=", "\\", " "]))
texts = st.lists(fragments, max_size=8).map("".join)
quotable = texts.filter(lambda s: not any(c in s for c in "'\"") and not any(t in s for t in SPECIAL_TOKENS))

def between(text: str, mark: str) -> list[int]:
    "Ids between the first and the last `mark`, which must be tokens of their own."
    ids, at = tokenizer.encode(text), tokenizer.convert_tokens_to_ids(mark)
    return ids[ids.index(at) + 1:len(ids) - ids[::-1].index(at) - 1]

@settings(max_examples=500, deadline=None)
@given(texts)
def test_decoding_gives_back_every_text(text):
    assert tokenizer.decode(tokenizer.encode(text)) == text

@settings(max_examples=500, deadline=None)
@given(quotable)
def test_quoted_text_is_cut_alike_in_goals_and_actions(text):
    ids = between(f'TYPE(text="{text}")', '"')
    assert between(f"Log in as '{text}'.", "'") == ids
    assert between(f'Goal: Type "{text}".', '"') == ids
    assert tokenizer.decode(ids) == text
