"""`orind.AsyncClient` on a real daemon."""

import asyncio
import time
import unittest

import support
from support import Impostor, POLICY, orind


class Calls(unittest.TestCase):
    def setUp(self):
        self.daemon = support.daemon()

    def run_(self, task):
        async def main():
            async with orind.AsyncClient(self.daemon.socket, timeout=60) as client:
                return await asyncio.wait_for(task(client), 60)
        return asyncio.run(main())

    def idle(self):
        end = time.monotonic() + 10
        while self.daemon.client.status()["requests"]["active"]:
            self.assertLess(time.monotonic(), end, "the daemon still generates")
            time.sleep(0.01)

    def test_answers_are_those_of_the_client(self):
        async def task(client):
            together = await asyncio.gather(*(client.chat("hi", max_tokens=8, temperature=0) for _ in range(5)))
            async with client.chat_stream("hi", max_tokens=8, temperature=0) as stream:
                parts = [delta.text async for delta in stream]
            assert stream.answer.usage.completion == together[0].usage.completion
            text = (await client.generate_stream("hi", max_tokens=4).result()).text
            assert isinstance(text, str) and (await client.status())["pid"] and len(await client.metrics()) > 10
            run = await client.run(POLICY, {"observation": [support.example()[0]]})
            assert run["action"].shape == (1, 4) and await client.tokenize("hi")
            return {answer.text for answer in together} | {"".join(parts)}

        self.assertEqual(self.run_(task), {self.daemon.client.chat("hi", max_tokens=8, temperature=0).text})

    def test_a_cancelled_task_cancels_the_request(self):
        async def task(client):
            for make in (lambda: client.chat("hi", max_tokens=1900, ignore_eos=True),
                         lambda: client.generate_stream("hi", max_tokens=1900, ignore_eos=True).result()):
                try:
                    await asyncio.wait_for(make(), 0.1)
                except asyncio.TimeoutError:
                    continue
                raise AssertionError("it was not cancelled")

        self.run_(task)
        self.idle()

    def test_a_stream_ends_with_its_block(self):
        async def task(client):
            async with client.chat_stream("hi", max_tokens=1900, ignore_eos=True) as stream:
                async for _ in stream:
                    break
            try:
                await stream.result()
            except orind.Closed:
                return True

        self.assertTrue(self.run_(task))
        self.idle()

    def test_errors(self):
        async def task(client):
            try:
                await client.chat("hi", temperature=9)
            except orind.InvalidRequest as error:
                return error.field

        self.assertEqual(self.run_(task), "temperature")

    def test_a_silent_server_does_not_block_the_loop(self):
        with Impostor(b"", hold=True) as server:
            async def main():
                async with orind.AsyncClient(server.path) as client:
                    try:
                        await asyncio.wait_for(client.status(), 0.1)
                    except asyncio.TimeoutError:
                        return True

            began = time.monotonic()
            self.assertTrue(asyncio.run(main()))
            self.assertLess(time.monotonic() - began, 2)


if __name__ == "__main__":
    unittest.main()
