"""Histories of any kind, balanced or not, drawn by hypothesis."""

from hypothesis import strategies as st

from refold import Message, ProviderBlock, TextBlock, ThinkingBlock, ToolUseBlock
from refold.events import ImageBlock, ToolResultBlock
from refold.events.core.content import JsonObject
from refold.events.core.ids import ToolCallId
from refold.events.model.configuration import ToolSpec
from tests.providers.anthropic_messages import CITATION

CITED: JsonObject = {"anthropic": {"citations": [CITATION]}, "openai": {"anything": 1}}
OWN_BLOCKS: list[JsonObject] = [
    {"type": "redacted_thinking", "data": "x"},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
]
MEDIA_TYPES = ["image/png", "image/png", "image/jpg", "image/jpeg", "image/tiff", "image/tiff", "IMAGE/WEBP; q=1"]
CALL_IDS = ["call_1_0", "call_1_1", "functions.Bash:0", "toolu_" + "x" * 50, "", "ä b"]

texts = st.text(st.characters(), max_size=8) | st.sampled_from(["", " ", "é😀", "\ud83d", "Error: x"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
json_objects = st.dictionaries(texts, json_values, max_size=3)
tool_names = texts | st.sampled_from(["weather", "time", "wetter für morgen", "x" * 70, "", "a.b"])
schemas: st.SearchStrategy[JsonObject] = st.sampled_from(
    [{}, {"type": "object", "properties": {"x": {"type": "string"}}}]
)
tools = st.lists(
    st.builds(ToolSpec, name=tool_names, description=texts, input_schema=schemas),
    max_size=3,
    unique_by=lambda spec: spec.name,
).map(tuple)

call_ids = st.sampled_from(CALL_IDS).map(ToolCallId)
text_blocks = st.builds(TextBlock, text=texts, provider_data=st.none() | st.just(CITED))
images = st.builds(ImageBlock, media_type=st.sampled_from(MEDIA_TYPES), data=st.binary(max_size=4))
calls = st.builds(ToolUseBlock, id=call_ids, name=tool_names, input=json_objects)
results = st.builds(
    lambda call, content, failed: ToolResultBlock(
        tool_use_id=call, content=tuple(content), is_error=failed, kind="permanent" if failed else None
    ),
    call_ids,
    st.lists(text_blocks | images, max_size=2),
    st.booleans(),
)
own_blocks = st.builds(
    ProviderBlock, provider=st.sampled_from(["anthropic", "google"]), data=st.sampled_from(OWN_BLOCKS)
)
thoughts = st.builds(
    ThinkingBlock, thinking=texts, signature=st.none() | st.from_regex(r"[a-z_]{1,12}", fullmatch=True)
)
user_blocks = text_blocks | images | results | own_blocks
answer_blocks = text_blocks | images | own_blocks | calls | thoughts
user_messages = st.lists(user_blocks, max_size=4).map(lambda blocks: Message("user", tuple(blocks)))
answers = st.lists(answer_blocks, max_size=4).map(lambda blocks: Message("assistant", tuple(blocks)))
misplaced = st.lists(answer_blocks | results, max_size=4).map(lambda blocks: Message("assistant", tuple(blocks)))
histories = st.lists(user_messages | answers, max_size=7)
misplaced_histories = st.lists(user_messages | misplaced, max_size=7)
"""With results in answers, too."""
