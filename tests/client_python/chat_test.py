# SPDX-License-Identifier: Apache-2.0
"""Chats and responses, with a model that says what a script has (tests/support/scripted_model.py)."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from dataclasses import dataclass
from typing import Literal

import grpc
import lintel
from lintel import ChatFinishReason, RetryPolicy

from away_test import QUICK, free_port
from serving import PATIENCE, REPOSITORY, Server, eventually, run_async

LIMITS = ["--max-new-tokens", "1000000000", "--chat-max-tokens", "1000000"]
FOREVER = "say it forever"


@dataclass
class City:
    name: str
    population: int


def weather(city: str, unit: Literal["C", "F"] = "C") -> str:
    """The weather in a city."""
    return f"sunny in {city}, 20 {unit}"


def make_model(directory):
    script = os.path.join(REPOSITORY, "tests", "support", "scripted_model.py")
    subprocess.run([sys.executable, script, os.path.join(directory, "qwen35")], check=True)
    return os.path.join(directory, "qwen35")


class ChatTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.server = Server([make_model(directory)], LIMITS)

    @classmethod
    def tearDownClass(cls):
        status = cls.server.stop()
        assert status == 0, f"lintel-server ended with {status}:\n{cls.server.log}"

    def setUp(self):
        self.client = self.enterContext(lintel.Client(self.server.address, timeout=PATIENCE))

    def run_async(self, body):
        async def main():
            async with lintel.AsyncClient(self.server.address, timeout=PATIENCE) as client:
                return await body(client)
        return run_async(main())

    def check_freed(self):
        eventually(lambda: self.server.metric("lintel_requests_running") == 0, "a free slot")

    def test_an_answer_has_text_usage_and_why_it_ended(self):
        answer = self.client.chat("Hello.", model="qwen35", seed=7).answer()
        self.assertEqual(answer.content, "Good morrow, friend.")
        self.assertEqual((answer.reasoning, answer.calls), ("", ()))
        self.assertEqual((answer.model, answer.seed), ("qwen35", 7))
        self.assertIs(answer.finish_reason, ChatFinishReason.STOP)
        self.assertEqual(answer.usage.completion_tokens, 3)  # two, and the one that ends it
        self.assertGreater(answer.usage.prompt_tokens, 0)
        self.assertEqual(answer.message, {"role": "assistant", "content": "Good morrow, friend."})
        with self.assertRaisesRegex(ValueError, "has no schema"):
            answer.parsed

    def test_a_stream_brings_the_pieces_of_the_answer_and_then_the_whole(self):
        chat = self.client.chat("Hello.", max_tokens=50)
        self.assertEqual("".join(delta.content for delta in chat), "Good morrow, friend.")
        self.assertEqual(chat.answer().content, "Good morrow, friend.")

        async def body(client):
            chat = client.chat("Hello.")
            text = "".join([delta.content async for delta in chat])
            return text, (await chat.answer()).content
        self.assertEqual(self.run_async(body), ("Good morrow, friend.",) * 2)

    def test_reasoning_is_apart_from_the_content(self):
        chat = self.client.chat("What is the sum of 2 and 3?")
        deltas = list(chat)
        self.assertEqual("".join(delta.reasoning for delta in deltas), "Two and three.")
        self.assertEqual("".join(delta.content for delta in deltas), "5")
        answer = chat.answer()
        self.assertEqual((answer.reasoning, answer.content), ("Two and three.", "5"))
        self.assertEqual(answer.message["reasoning_content"], "Two and three.")
        self.assertEqual(answer.usage.reasoning_tokens, 3)

    def test_an_answer_says_what_ended_it_and_how_long_it_took(self):
        answer = self.client.chat("Hello.", stop=["friend"], extra={"return_token_ids": True}).answer()
        self.assertEqual((answer.content, answer.stop_string), ("Good morrow, ", b"friend"))
        self.assertFalse(answer.at_context_end)
        self.assertGreater(answer.timings.prompt + answer.timings.generation, 0)
        rendered = self.client.render_chat("Hello.")
        self.assertEqual(answer.prompt_ids, rendered.ids)
        self.assertEqual(self.client.detokenize(answer.token_ids)[:12], "Good morrow,")

    def test_several_choices_are_answers_of_their_own(self):
        answers = self.client.chat("Hello.", n=3, seed=5).answers()
        self.assertEqual([answer.choice for answer in answers], [0, 1, 2])
        self.assertEqual([answer.seed for answer in answers], [5, 6, 7])
        self.assertEqual({answer.content for answer in answers}, {"Good morrow, friend."})

    def test_log_probabilities_are_of_the_content(self):
        answer = self.client.chat("Hello.", logprobs=True, top_logprobs=2).answer()
        self.assertEqual(b"".join(token.text for token in answer.tokens), b"Good morrow, friend.")
        self.assertTrue(all(token.log2_prob <= 0 and len(token.top) == 2 for token in answer.tokens))

    def test_a_loop_runs_functions_until_the_model_has_its_answer(self):
        messages = [{"role": "user", "content": "How is the weather in Bern?"}]
        first = self.client.chat(messages, tools=[weather]).answer()
        self.assertIs(first.finish_reason, ChatFinishReason.TOOL_CALLS)
        (call,) = first.calls
        self.assertEqual((call.name, call.kwargs), ("weather", {"city": "Bern"}))
        messages += [first.message, call.result(call.run(weather))]
        self.assertEqual(messages[-1]["content"], "sunny in Bern, 20 C")
        last = self.client.chat(messages, tools=[weather]).answer()
        self.assertEqual((last.content, last.calls), ("It is sunny in Bern.", ()))

        async def slow_weather(city: str) -> City:
            return City(city, 1)

        async def body(client):
            tool = {"type": "function", "function": {"name": "weather", "parameters": {
                "type": "object", "properties": {"city": {"type": "string"}}}}}
            messages = [{"role": "user", "content": "How is the weather in Bern?"}]
            while True:
                answer = await client.chat(messages, tools=[tool]).answer()
                messages.append(answer.message)
                if not answer.calls:
                    return messages
                for call in answer.calls:
                    messages.append(call.result(await call.run(slow_weather)))
        messages = self.run_async(body)
        self.assertEqual(messages[-2]["content"], '{"name": "Bern", "population": 1}')
        self.assertEqual(messages[-1]["content"], "It is sunny in Bern.")

    def test_a_streamed_call_comes_in_pieces(self):
        calls = [delta.call for delta in self.client.chat("The weather?", tools=[weather])
                 if delta.call is not None]
        self.assertEqual(calls[0].name, "weather")
        self.assertTrue(calls[0].id)
        self.assertEqual("".join(call.arguments for call in calls), '{"city": "Bern"}')
        self.assertGreater(len(calls), 1)

    def test_a_call_that_a_limit_cut_is_no_call(self):
        answer = self.client.chat("The weather?", tools=[weather], max_tokens=3).answer()
        self.assertEqual(answer.calls, ())
        self.assertIs(answer.finish_reason, ChatFinishReason.LENGTH)

    def test_a_function_can_be_forced(self):
        def capital(country: str) -> str:
            return country
        answer = self.client.chat("Hello.", tools=[weather, capital], tool_choice=capital,
                                  max_tokens=2000, temperature=0,
                                  logit_bias={ord('"'): 30, ord("}"): 30}).answer()
        self.assertEqual([call.name for call in answer.calls], ["capital"] * len(answer.calls))
        with self.assertRaises(lintel.InvalidArgument):
            self.client.chat("Hello.", tools=[weather], tool_choice=capital).answer()

    def test_a_schema_gives_an_instance_of_its_type(self):
        answer = self.client.chat("Name a city.", schema=City).answer()
        self.assertEqual(answer.parsed, City("Bern", 134000))
        schema = {"type": "object", "properties": {"name": {"type": "string"}, "population": {"type": "integer"}},
                  "required": ["name"], "additionalProperties": False}
        answer = self.client.chat("Name a city.", schema=schema).answer()
        self.assertEqual(answer.parsed, {"name": "Bern", "population": 134000})
        cut = self.client.chat("Name a city.", schema=City, max_tokens=1).answer()
        with self.assertRaisesRegex(ValueError, "a limit cut the answer"):
            cut.parsed
        response = self.client.respond("Name a city.", schema=City, max_tokens=100).response()
        self.assertEqual(response.parsed, City("Bern", 134000))

        async def body(client):
            return (await client.chat("Name a city.", schema=City).answer()).parsed
        self.assertEqual(self.run_async(body), City("Bern", 134000))

    def test_a_schema_that_cannot_be_held_is_refused_by_its_keyword(self):
        schema = {"type": "array", "uniqueItems": True, "items": {"type": "integer"}}
        for call in (self.client.chat("x", schema=schema).answer,
                     self.client.respond("x", schema=schema).response):
            with self.assertRaises(lintel.InvalidArgument) as caught:
                call()
            self.assertIn("uniqueItems", str(caught.exception))

    def test_errors_name_their_field(self):
        for call, field in (
            (self.client.chat("x", temperature=-1).answer, "temperature"),
            (self.client.chat([{"role": "user", "content": 7}]).answer, "messages[0].content"),
            (self.client.chat("x", extra={"chat_template": "x"}).answer, "chat_template"),
            (self.client.respond("x", extra={"conversation": "x"}).response, "conversation"),
            (self.client.respond("x", previous_response_id="resp_none").response, "previous_response_id"),
        ):
            with self.assertRaises(lintel.LintelError) as caught:
                call()
            error = caught.exception
            self.assertTrue(any(field in violation.field for violation in error.violations), error)
        with self.assertRaises(lintel.NotFound) as caught:
            self.client.chat("x", model="nope").answer()
        self.assertRegex(str(caught.exception), r"^NOT_FOUND: no model is named nope: there are qwen35 \[request \w+\]$")
        for wrong in (b"bytes", {"role": "user"}):
            with self.assertRaisesRegex(TypeError, "messages is a str or a list of dicts"):
                self.client.chat(wrong)
        with self.assertRaisesRegex(TypeError, "x has no type"):
            self.client.chat("x", tools=[lambda x: x])

    def test_a_stream_that_is_left_ends_on_the_server(self):
        for _ in self.client.chat(FOREVER):
            break
        self.check_freed()
        chat = self.client.chat(FOREVER)
        pieces = iter(chat)
        next(pieces)
        closer = threading.Timer(0.05, chat.close)
        closer.start()
        with self.assertRaises(lintel.Cancelled):
            for _ in pieces:
                pass
        closer.join()
        with self.assertRaises(lintel.Cancelled) as caught:
            chat.answer()
        self.assertTrue(caught.exception.answers[0].content.startswith(" on and on"))
        with self.client.respond(FOREVER, store=False) as response:
            next(iter(response))
        self.check_freed()

        async def body(client):
            started = asyncio.Event()

            async def read():
                async for _ in client.chat(FOREVER):
                    started.set()
            task = asyncio.create_task(read())
            await started.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            async for _ in client.respond(FOREVER, store=False):
                break
            await asyncio.to_thread(self.check_freed)
        self.run_async(body)

    def test_a_call_ends_with_its_timeout(self):
        with self.assertRaises(lintel.DeadlineExceeded) as caught:
            self.client.chat(FOREVER, timeout=0.2).answer()
        self.assertTrue(caught.exception.answers[0].content)

    def test_a_response_continues_and_branches(self):
        first = self.client.respond("Hello.", instructions="Be brief.").response()
        self.assertEqual((first.status, first.content), ("completed", "Good morrow, friend."))
        second = self.client.respond("Hello again.", previous_response_id=first).response()
        branch = self.client.respond("The sum?", previous_response_id=first.id).response()
        self.assertEqual([second.previous_response_id, branch.previous_response_id], [first.id] * 2)
        self.assertEqual((second.content, branch.content), ("Good night, then.", "5"))
        self.assertEqual(branch.reasoning, "Two and three.")
        self.assertGreater(second.usage.prompt_tokens, first.usage.prompt_tokens)
        self.assertEqual(self.client.get_response(second.id), second)
        self.client.delete_response(second.id)
        with self.assertRaises(lintel.NotFound):
            self.client.get_response(second.id)

        async def body(client):
            first = await client.respond("Hello.").response()
            stream = client.respond("Hello again.", previous_response_id=first)
            text = "".join([event.content async for event in stream])
            response = await stream.response()
            self.assertEqual(await client.get_response(response.id), response)
            return text, response.content
        self.assertEqual(self.run_async(body), ("Good night, then.",) * 2)

    def test_the_events_of_a_response_are_in_order(self):
        stream = self.client.respond("The sum?")
        events = list(stream)
        self.assertEqual([event.data["sequence_number"] for event in events], list(range(len(events))))
        self.assertEqual((events[0].type, events[-1].type), ("response.created", "response.completed"))
        self.assertEqual("".join(event.reasoning for event in events), "Two and three.")
        self.assertEqual("".join(event.content for event in events), "5")
        self.assertEqual(stream.response().data, events[-1].data["response"])

    def test_a_response_takes_the_output_of_its_calls(self):
        first = self.client.respond("The weather?", tools=[weather], tool_choice=weather).response()
        self.assertEqual([call.name for call in first.calls], ["weather"])
        outputs = [call.output(call.run(weather)) for call in first.calls]
        last = self.client.respond(outputs, tools=[weather], previous_response_id=first).response()
        self.assertEqual(last.content, "It is sunny in Bern.")

    def test_a_response_in_the_background_can_be_cancelled(self):
        running = self.client.respond(FOREVER, background=True).response()
        self.assertIn(running.status, ("queued", "in_progress"))
        cancelled = self.client.cancel_response(running.id)
        self.assertEqual(cancelled.status, "cancelled")
        self.check_freed()

    def test_the_events_of_a_stored_response_come_again(self):
        stream = self.client.respond("The sum?")
        events = list(stream)
        replayed = self.client.replay_response(stream.response().id)
        self.assertEqual(list(replayed), events)
        self.assertEqual(replayed.response(), stream.response())
        self.assertEqual(list(self.client.replay_response(stream.response().id, starting_after=3)), events[4:])
        with self.assertRaises(lintel.NotFound):
            self.client.replay_response("resp_none").response()

        running = self.client.respond(FOREVER, background=True).response()
        with self.client.replay_response(running.id) as following:
            for event in following:
                if event.content:
                    break
        self.client.cancel_response(running.id)
        self.assertEqual(self.client.replay_response(running.id).response().status, "cancelled")
        self.check_freed()

    def test_the_input_of_a_response_is_listed_page_by_page(self):
        texts = [f"Question {number}?" for number in range(205)]  # three pages
        response = self.client.respond([{"role": "user", "content": text} for text in texts]).response()
        oldest = self.client.list_input_items(response.id, ascending=True)
        self.assertEqual([item["content"][0]["text"] for item in oldest], texts)
        self.assertEqual(self.client.list_input_items(response.id), oldest[::-1])
        with self.assertRaises(lintel.NotFound):
            self.client.list_input_items("resp_none")

    def test_a_prompt_is_counted_and_a_conversation_compacted(self):
        first = self.client.respond("Hello.").response()
        self.assertEqual(self.client.count_input_tokens("Hello."), first.usage.prompt_tokens)
        count = self.client.count_input_tokens("Hello again.", previous_response_id=first, tools=[weather])
        second = self.client.respond("Hello again.", previous_response_id=first, tools=[weather]).response()
        self.assertEqual(count, second.usage.prompt_tokens)
        with self.assertRaisesRegex(lintel.LintelError, "previous_response_id"):
            self.client.count_input_tokens("Hello.", previous_response_id="resp_none")

        (item,) = self.client.compact_response(model="qwen35", previous_response_id=first)
        self.assertEqual(item["type"], "compaction")
        question = {"role": "user", "content": "Hello again."}
        self.assertEqual(self.client.count_input_tokens([item, question], tools=[weather]), count)
        self.assertEqual(self.client.respond([item, question]).response().content, "Good night, then.")
        self.assertEqual(len(self.client.compact_response([question], model="qwen35", instructions="Be brief.")), 1)

        async def body(client):
            (item,) = await client.compact_response(model="qwen35", previous_response_id=first.id)
            replayed = await client.replay_response(first.id).response()
            return (await client.count_input_tokens([item, question], tools=[weather]), replayed,
                    len(await client.list_input_items(first.id)))
        self.assertEqual(self.run_async(body), (count, first, 1))

    def test_one_key_is_one_response(self):
        first, again = (self.client.respond("Hello.", idempotency_key="hello").response() for _ in range(2))
        self.assertEqual(again, first)
        with self.assertRaises(lintel.InvalidArgument) as caught:
            self.client.respond("Other.", idempotency_key="hello").response()
        self.assertEqual(caught.exception.reason, "IDEMPOTENCY_KEY_REUSED")

    def test_a_prompt_can_be_seen(self):
        rendered = self.client.render_chat("Hello.", tools=[weather], model="qwen35")
        self.assertIn(b'"description": "The weather in a city."', rendered.text)
        self.assertIn(b"Hello.<|im_end|>", rendered.text)
        self.assertEqual(rendered.model, "qwen35")
        self.assertGreater(len(rendered.ids), rendered.turn_boundary)

        async def body(client):
            return await client.render_chat("Hello.", tools=[weather], model="qwen35")
        self.assertEqual(self.run_async(body), rendered)

    def test_the_methods_are_the_same_in_asyncio(self):
        def public(kind):
            return {name for name in vars(kind) if not name.startswith("_")}
        self.assertEqual(public(lintel.AsyncChatStream), public(lintel.ChatStream))
        self.assertEqual(public(lintel.AsyncResponseStream), public(lintel.ResponseStream))


class RetryTest(unittest.TestCase):
    def setUp(self):
        self.directory = self.enterContext(tempfile.TemporaryDirectory())
        self.model = make_model(self.directory)
        self.address = f"127.0.0.1:{free_port()}"
        self.addCleanup(lambda: self.server.stop())

    def start(self, *flags):
        self.server = Server([self.model], [*LIMITS, "--outbox-tokens", "256", *flags], self.address)

    def restart(self, *flags):
        self.server.process.send_signal(signal.SIGKILL)
        self.server.stop()
        self.start(*flags)

    def test_a_chat_waits_for_its_server_while_nothing_has_come(self):
        starter = threading.Timer(0.5, self.start)
        starter.start()
        policy = RetryPolicy(max_attempts=1000, max_backoff=0.1)
        with lintel.Client(self.address, timeout=PATIENCE, retry=policy) as client:
            self.assertEqual(client.chat("Hello.").answer().content, "Good morrow, friend.")
        starter.join()

    def test_calls_without_a_server_fail_when_their_attempts_are_over(self):
        with lintel.Client(self.address, timeout=PATIENCE, retry=QUICK) as client:
            for call in (client.chat("Hello.").answer, client.respond("Hello.").response):
                with self.assertRaisesRegex(lintel.Unavailable, f"no server answers at {self.address}"):
                    call()
        self.start()

    def test_calls_go_to_the_first_of_several_servers_that_answers(self):
        self.start()
        several = f"127.0.0.1:{free_port()},{self.address}"
        with lintel.Client(several, timeout=PATIENCE, retry=None) as client:
            self.assertEqual(client.chat("Hello.").answer().content, "Good morrow, friend.")
        with lintel.Client(several, timeout=PATIENCE) as client:
            self.assertEqual(client.respond("Hello.").response().content, "Good morrow, friend.")

    def test_a_chat_that_was_cut_off_is_not_sent_again(self):
        self.start()
        with lintel.Client(self.address, timeout=PATIENCE) as client:
            deltas = iter(client.chat(FOREVER))
            next(deltas)
            self.restart()
            with self.assertRaises(lintel.Unavailable):
                for _ in deltas:
                    pass

    def check_cut(self, read):
        """A stored response whose server is killed in its middle comes whole, each event once."""
        store = ["--session-store", f"{self.directory}/store"]
        self.start(*store)
        count = 5000
        events, response = read(count, lambda: self.restart(*store))
        self.assertEqual([event.data["sequence_number"] for event in events], list(range(len(events))))
        self.assertEqual(response.id, events[0].data["response"]["id"])
        self.assertEqual("".join(event.content for event in events), response.content)
        self.assertEqual(response.usage.completion_tokens, count)

    def test_a_stored_response_continues_where_it_was_cut_off(self):
        def read(count, restart):
            with lintel.Client(self.address, timeout=PATIENCE) as client:
                stream, events = client.respond(FOREVER, max_tokens=count), []
                for event in stream:
                    events.append(event)
                    if len(events) == 50:
                        restart()
                return events, stream.response()
        self.check_cut(read)

    def test_a_stored_response_continues_where_it_was_cut_off_in_asyncio(self):
        def read(count, restart):
            async def main():
                async with lintel.AsyncClient(self.address, timeout=PATIENCE) as client:
                    stream, events = client.respond(FOREVER, max_tokens=count), []
                    async for event in stream:
                        events.append(event)
                        if len(events) == 50:
                            restart()
                    return events, await stream.response()
            return run_async(main())
        self.check_cut(read)

    def test_a_response_that_its_server_forgot_fails_in_place_of_another(self):
        self.start()
        with lintel.Client(self.address, timeout=PATIENCE) as client:
            events = iter(client.respond(FOREVER, max_tokens=1_000_000))
            id = next(events).data["response"]["id"]
            self.restart()
            with self.assertRaises(lintel.LintelError) as caught:
                for _ in events:
                    pass
        self.assertIs(caught.exception.code, grpc.StatusCode.UNAVAILABLE)
        self.assertIn(f"lost response {id}", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
