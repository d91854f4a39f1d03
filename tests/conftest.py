"What all tests share."
import asyncio

import pytest


@pytest.fixture(autouse=True)
def no_running_loop(request):
    "Playwright's synchronous interface leaves its loop marked as running in this thread; tests of asyncio need none."
    loop = asyncio._get_running_loop()
    uses_browser = {"browser", "page", "lab", "site"} & set(request.fixturenames)
    if loop is not None and not uses_browser: asyncio._set_running_loop(None)
    yield
    if loop is not None and not uses_browser: asyncio._set_running_loop(loop)
