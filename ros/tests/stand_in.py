"""Stand-in of the part of rclpy that the nodes use, in one process and without DDS. docs/ros.md states its coverage.

`install` makes `rclpy` importable. `GRAPH` connects nodes with the tests: `publish`, `messages`, `call`, `send_goal`.
"""

import collections
import enum
import sys
import threading
import time
import types
import uuid
from concurrent.futures import ThreadPoolExecutor

import messages


class Graph:
    """Topics, services and actions by name."""

    def __init__(self):
        self.clear()

    def clear(self):
        self.subscriptions = collections.defaultdict(list)
        self.sent = collections.defaultdict(list)
        self.services, self.actions = {}, {}
        self.pool = ThreadPoolExecutor(16)

    def publish(self, topic, message):
        """Delivers a message, and waits for its callbacks."""
        for kind, callback in self.subscriptions[topic]:
            assert isinstance(message, kind), f"{topic} has {kind.__name__}"
            callback(message)

    def call(self, name, request):
        """Calls a service."""
        kind, run = self.services[name]
        assert isinstance(request, kind.Request)
        response = run(request, kind.Response())
        assert isinstance(response, kind.Response), "a service must return a response"
        return response


GRAPH = Graph()


class MutuallyExclusiveCallbackGroup:
    def __init__(self):
        self.lock = threading.RLock()

    def run(self, callback, *arguments):
        with self.lock:
            return callback(*arguments)


class ReentrantCallbackGroup(MutuallyExclusiveCallbackGroup):
    def run(self, callback, *arguments):
        return callback(*arguments)


class Parameter:
    def __init__(self, name, type_=None, value=None):
        self.name, self.value = name, value


class Logger:
    def __getattr__(self, level):
        assert level in ("debug", "info", "warning", "error", "fatal"), level
        return lambda text: assert_type(text, str)


def assert_type(value, kind):
    assert isinstance(value, kind), f"{value!r} is no {kind.__name__}"


class Clock:
    def now(self):
        return self

    def to_msg(self):
        return sys.modules["builtin_interfaces.msg"].Time(sec=int(time.time()), nanosec=0)


class Publisher:
    def __init__(self, kind, topic):
        self.kind, self.topic = kind, topic

    def publish(self, message):
        assert_type(message, self.kind)
        GRAPH.sent[self.topic].append(message)


class Timer:
    def __init__(self, period, callback, group):
        assert period > 0
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(period, callback, group), daemon=True)
        self.thread.start()

    def run(self, period, callback, group):
        while not self.stopped.wait(period):
            group.run(lambda: None if self.stopped.is_set() else callback())


class Node:
    def __init__(self, node_name, *, namespace=None, parameter_overrides=None):
        self._name, self._namespace = node_name, namespace or "/"
        self._overrides = {one.name: one.value for one in parameter_overrides or []}
        self._parameters, self._timers = {}, []
        self.default_callback_group = MutuallyExclusiveCallbackGroup()

    def get_name(self):
        return self._name

    def get_logger(self):
        return Logger()

    def get_clock(self):
        return Clock()

    def declare_parameter(self, name, value):
        assert name not in self._parameters, f"{name} is declared twice"
        chosen = self._overrides.get(name, value)
        assert type(chosen) is type(value), f"parameter {name} is of type {type(value).__name__}, not {type(chosen).__name__}"
        self._parameters[name] = Parameter(name, value=chosen)
        return self._parameters[name]

    def get_parameter(self, name):
        return self._parameters[name]

    def _resolve(self, name):
        if name.startswith("~"):
            return f"/{self._name}{name[1:]}"
        return name if name.startswith("/") else f"{self._namespace.rstrip('/')}/{name}"

    def create_publisher(self, msg_type, topic, qos_profile):
        return Publisher(msg_type, self._resolve(topic))

    def create_subscription(self, msg_type, topic, callback, qos_profile, *, callback_group=None):
        group = callback_group or self.default_callback_group
        GRAPH.subscriptions[self._resolve(topic)].append((msg_type, lambda message: group.run(callback, message)))

    def create_service(self, srv_type, srv_name, callback, *, callback_group=None):
        group = callback_group or self.default_callback_group
        GRAPH.services[self._resolve(srv_name)] = (srv_type, lambda *arguments: group.run(callback, *arguments))

    def create_timer(self, timer_period_sec, callback, callback_group=None):
        timer = Timer(timer_period_sec, callback, callback_group or self.default_callback_group)
        self._timers.append(timer)
        return timer

    def destroy_timer(self, timer):
        timer.stopped.set()

    def destroy_node(self):
        for timer in self._timers:
            timer.stopped.set()
        for timer in self._timers:
            if timer.thread is not threading.current_thread():
                timer.thread.join()


class GoalResponse(enum.Enum):
    REJECT = 1
    ACCEPT = 2


class CancelResponse(enum.Enum):
    REJECT = 1
    ACCEPT = 2


class GoalHandle:
    """A goal with the states and transitions of rcl_action."""

    def __init__(self, server, request):
        self.request, self._server, self._state = request, server, "executing"
        self.goal_id = types.SimpleNamespace(uuid=list(uuid.uuid4().bytes))
        self.feedback, self.result, self.arrived = [], None, threading.Condition()

    def publish_feedback(self, feedback):
        assert_type(feedback, self._server.kind.Feedback)
        with self.arrived:
            self.feedback.append(feedback)
            self.arrived.notify_all()

    @property
    def is_cancel_requested(self):
        return self._state == "canceling"

    @property
    def is_active(self):
        return self._state in ("executing", "canceling")

    def _move(self, states, state):
        if self._state not in states:
            raise RuntimeError(f"a goal cannot become {state} while it is {self._state}")
        self._state = state

    def succeed(self):
        self._move(("executing", "canceling"), "succeeded")

    def abort(self):
        self._move(("executing", "canceling"), "aborted")

    def canceled(self):
        self._move(("canceling",), "canceled")

    # For tests

    def wait_feedback(self, count=1, timeout=30):
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.feedback) >= count or self.done.done(), timeout)

    def cancel(self):
        """Requests the cancellation; returns whether it was accepted."""
        return self._server.group.run(self._server.cancel, self)

    def get(self, timeout=30):
        """Final state and result."""
        result = self.done.result(timeout)
        return self._state, result


class ActionServer:
    def __init__(self, node, action_type, action_name, execute_callback, *, callback_group=None, goal_callback=None,
                 cancel_callback=None):
        self.kind, self.execute = action_type, execute_callback
        self.goal_callback = goal_callback or (lambda request: GoalResponse.ACCEPT)
        self.cancel_callback = cancel_callback or (lambda goal: CancelResponse.REJECT)
        self.group = callback_group or node.default_callback_group
        GRAPH.actions[node._resolve(action_name)] = self

    def send_goal(self, goal):
        """Returns a handle, or None if the goal is refused."""
        assert_type(goal, self.kind.Goal)
        response = self.group.run(self.goal_callback, goal)
        assert_type(response, GoalResponse)
        if response is not GoalResponse.ACCEPT:
            return None
        handle = GoalHandle(self, goal)
        handle.done = GRAPH.pool.submit(self.group.run, self._run, handle)
        return handle

    def _run(self, handle):
        result = self.execute(handle)
        assert_type(result, self.kind.Result)
        if handle.is_active:
            handle.abort()
        return result

    def cancel(self, handle):
        if not handle.is_active:
            return False
        response = self.cancel_callback(handle)
        assert_type(response, CancelResponse)
        if response is CancelResponse.ACCEPT:
            time.sleep(0.02)  # the state changes a moment after the callback
            if handle.is_active:
                handle._state = "canceling"
        return response is CancelResponse.ACCEPT

    def destroy(self):
        pass


class Executor:
    """Callbacks run by themselves here; `spin` waits for the end."""

    def __init__(self, num_threads=None):
        self.num_threads, self.nodes = num_threads, []

    def add_node(self, node):
        self.nodes.append(node)

    def spin(self):
        ENDED.wait()
        raise ExternalShutdownException()


class ExternalShutdownException(Exception):
    pass


ENDED = threading.Event()


def install():
    """Makes `rclpy` and all modules of messages importable."""
    messages.install()
    module = messages._module
    module("rclpy", init=lambda args=None: ENDED.clear(), try_shutdown=ENDED.set, ok=lambda: not ENDED.is_set())
    module("rclpy.node", Node=Node)
    module("rclpy.parameter", Parameter=Parameter)
    module("rclpy.action", ActionServer=ActionServer, GoalResponse=GoalResponse, CancelResponse=CancelResponse)
    module("rclpy.callback_groups", ReentrantCallbackGroup=ReentrantCallbackGroup,
           MutuallyExclusiveCallbackGroup=MutuallyExclusiveCallbackGroup)
    module("rclpy.executors", MultiThreadedExecutor=Executor, SingleThreadedExecutor=Executor,
           ExternalShutdownException=ExternalShutdownException)
    module("rclpy.qos", qos_profile_sensor_data=object())
