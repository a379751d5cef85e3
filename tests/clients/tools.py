"""Asks `shoal mcp` as the official Python client of the Model Context Protocol does. Arguments: the binary, its data folder."""
import asyncio
import json
import os
import sys

try:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client
except ImportError as missing:
    print(f"missing: {missing.name}")
    sys.exit(77)

BINARY, HOME = sys.argv[1:3]


def text(result):
    assert not getattr(result, "is_error", getattr(result, "isError", False)), result
    return result.content[0].text


async def main():
    server = StdioServerParameters(command=BINARY, args=["mcp"], env={**os.environ, "SHOAL_HOME": HOME, "SHOAL_THREADS": "1"})
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        hello = await session.initialize()
        told = getattr(hello, "protocol_version", None) or hello.protocolVersion
        assert told == "2025-06-18", hello
        names = [tool.name for tool in (await session.list_tools()).tools]
        assert names == ["ask", "models", "swarm"], names
        asked = {"prompt": "Tell me a story", "max_tokens": 16, "seed": 1}
        first = text(await session.call_tool("ask", asked))
        assert first and first == text(await session.call_tool("ask", asked)), first
        assert any(model["name"] == "minnow" for model in json.loads(text(await session.call_tool("models", {}))))
        assert "nodes" in json.loads(text(await session.call_tool("swarm", {})))
    print("4 tools' calls are answered")


asyncio.run(main())
