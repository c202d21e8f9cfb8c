"""Node `orind`: chat and embeddings as services, and as actions with feedback and cancellation."""

import array
import json
import threading
import time

import orind
import rclpy
from orind_interfaces.action import Chat as ChatAction
from orind_interfaces.action import Embed as EmbedAction
from orind_interfaces.srv import Chat, Embed
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import ExternalShutdownException, MultiThreadedExecutor
from rclpy.node import Node

# Texts of an embedding request; between two requests a goal can be cancelled.
BATCH = 16
# Seconds until a goal whose cancellation was accepted is in the state "canceling".
CANCELLING_S = 1.0


class LanguageNode(Node):
    """Serves `~/chat` and `~/embed`, each as a service and as an action."""

    def __init__(self, **options):
        super().__init__("orind", **options)
        self.declare_parameter("address", "")
        self.declare_parameter("model", "")
        self.declare_parameter("embedding_model", "")
        self.declare_parameter("max_tokens", 512)
        self.declare_parameter("timeout_s", 120.0)
        self.declare_parameter("max_goals", 4)
        self.client = orind.Client(self._value("address") or None, timeout=self._value("timeout_s"))
        self.max_goals = max(self._value("max_goals"), 1)
        self._lock = threading.Lock()
        self._goals = 0
        self._streams = {}
        self._cancelled = set()
        group = ReentrantCallbackGroup()
        self.create_service(Chat, "~/chat", self.chat, callback_group=group)
        self.create_service(Embed, "~/embed", self.embed, callback_group=group)
        actions = dict(goal_callback=self.accept, cancel_callback=self.cancel, callback_group=group)
        self._actions = [
            ActionServer(self, ChatAction, "~/chat", self.chat_goal, **actions),
            ActionServer(self, EmbedAction, "~/embed", self.embed_goal, **actions),
        ]

    def _value(self, name):
        return self.get_parameter(name).value

    def threads(self):
        """Threads that the executor needs: one for each goal, and two for services and cancellations."""
        return self.max_goals + 2

    # Requests

    def _chat_options(self, request):
        options = {
            "model": request.model or self._value("model") or None,
            "max_tokens": request.max_tokens or self._value("max_tokens") or None,
            "temperature": request.temperature if request.temperature >= 0 else None,
            "seed": request.seed if request.seed >= 0 else None,
        }
        if request.json_schema:
            options["json_schema"] = json.loads(request.json_schema)
        return [{"role": one.role, "content": one.content} for one in request.messages], options

    def _embed(self, request, texts):
        model = request.model or self._value("embedding_model") or None
        return self.client.embed(list(texts), model=model, dimensions=request.dimensions or None)

    def chat(self, request, response):
        """Service: a whole answer."""
        try:
            messages, options = self._chat_options(request)
            finish(response, self.client.chat(messages, **options))
        except (orind.OrindError, ValueError) as error:
            fail(response, error)
        return response

    def embed(self, request, response):
        """Service: embeddings of a few texts."""
        try:
            if request.texts:
                rows = self._embed(request, request.texts)
                response.dimensions, response.values = rows.shape[1], array.array("f", rows.memory)
        except (orind.OrindError, ValueError) as error:
            fail(response, error)
        return response

    # Goals

    def accept(self, _request):
        """Refuses goals beyond `max_goals`, because each occupies a thread."""
        with self._lock:
            if self._goals >= self.max_goals:
                self.get_logger().warning(f"a goal is refused: {self._goals} run already (max_goals)")
                return GoalResponse.REJECT
            self._goals += 1
        return GoalResponse.ACCEPT

    def cancel(self, goal):
        """Closes the goal's connection, on which the daemon cancels the request."""
        key = bytes(goal.goal_id.uuid)
        with self._lock:
            self._cancelled.add(key)
            stream = self._streams.get(key)
        if stream is not None:
            stream.close()
        return CancelResponse.ACCEPT

    def chat_goal(self, goal):
        """Action: an answer part by part."""
        return self._goal(goal, ChatAction.Result(), self._chat_parts)

    def embed_goal(self, goal):
        """Action: embeddings of many texts."""
        return self._goal(goal, EmbedAction.Result(), self._embed_parts)

    def _goal(self, goal, result, run):
        key = bytes(goal.goal_id.uuid)
        try:
            run(goal, key, result)
        except orind.Closed:
            pass
        except (orind.OrindError, ValueError) as error:
            if key not in self._cancelled:
                fail(result, error)
        finally:
            with self._lock:
                self._goals -= 1
                self._streams.pop(key, None)
                cancelled = key in self._cancelled
                self._cancelled.discard(key)
        if cancelled and self._is_cancelling(goal):
            goal.canceled()
        elif result.failure.code or cancelled:
            goal.abort()
        else:
            goal.succeed()
        return result

    @staticmethod
    def _is_cancelling(goal):
        # The state changes when the callback `cancel` has returned, in another thread.
        end = time.monotonic() + CANCELLING_S
        while not goal.is_cancel_requested and time.monotonic() < end:
            time.sleep(0.001)
        return goal.is_cancel_requested

    def _chat_parts(self, goal, key, result):
        messages, options = self._chat_options(goal.request)
        with self.client.chat_stream(messages, **options) as stream:
            with self._lock:
                self._streams[key] = stream
                if key in self._cancelled:
                    return
            try:
                for delta in stream:
                    feedback = ChatAction.Feedback()
                    feedback.text, feedback.reasoning = delta.text, delta.reasoning
                    goal.publish_feedback(feedback)
            finally:
                finish(result, stream.answer)
                result.reasoning = stream.answer.reasoning

    def _embed_parts(self, goal, key, result):
        texts = list(goal.request.texts)
        for at in range(0, len(texts), BATCH):
            if key in self._cancelled:
                return
            rows = self._embed(goal.request, texts[at:at + BATCH])
            result.dimensions = rows.shape[1]
            result.values.extend(rows.memory)
            feedback = EmbedAction.Feedback()
            feedback.done = min(at + BATCH, len(texts))
            goal.publish_feedback(feedback)

    def destroy_node(self):
        """Cancels all requests."""
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.close()
        for server in self._actions:
            server.destroy()
        return super().destroy_node()


def finish(result, answer):
    """Copies an answer into a response or result."""
    result.text, result.finish_reason = answer.text, answer.finish_reason or ""
    result.prompt_tokens, result.completion_tokens = answer.usage.prompt, answer.usage.completion


def fail(result, error):
    """Copies an error into a response or result."""
    result.failure.code = getattr(error, "code", "") or type(error).__name__
    result.failure.message = str(error)


def main(args=None):
    """Runs the node until it is interrupted."""
    rclpy.init(args=args)
    node = LanguageNode()
    executor = MultiThreadedExecutor(num_threads=node.threads())
    executor.add_node(node)
    try:
        executor.spin()
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        node.destroy_node()
        rclpy.try_shutdown()
