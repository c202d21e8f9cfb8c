"""Node of a control loop: topics into the loop's shared memory, a step, and its outputs as topics and diagnostics."""

import time

import orind
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data

from .mapping import Mapping

REPORT_S = 1.0


class Part:
    """Values of an input that one topic provides: `size` values from `start` on."""

    def __init__(self, mapping):
        self.mapping, self.start, self.size, self.at = mapping, 0, None, None


class ControlLoopNode(Node):
    """Steps a control loop at its rate (`trigger: timer`), or with each message of its first input (`message`)."""

    def __init__(self, **options):
        super().__init__("control_loop", **options)
        self.declare_parameter("address", "")
        self.declare_parameter("loop", "")
        self.declare_parameter("inputs", [""])
        self.declare_parameter("outputs", [""])
        self.declare_parameter("trigger", "timer")
        self.declare_parameter("rate_hz", 0.0)
        self.declare_parameter("timeout_s", 0.1)
        self.declare_parameter("max_age_s", 0.5)
        self.name = self._value("loop")
        self.trigger = self._value("trigger")
        if self.trigger not in ("timer", "message"):
            raise ValueError(f"trigger {self.trigger}: use timer or message")
        self.parts = [Part(Mapping(text)) for text in self._value("inputs") if text]
        self.results = [Mapping(text) for text in self._value("outputs") if text]
        if not self.name or not self.parts or not self.results:
            raise ValueError("the parameters loop, inputs and outputs are required")
        self.loop, self.timer = None, None
        self.steps = self.missed = self.reported = self.failed = 0
        self.problem = "not connected yet"
        self.publishers_ = [self.create_publisher(one.type, one.topic, 10) for one in self.results]
        self.diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        for index, part in enumerate(self.parts):
            self.create_subscription(part.mapping.type, part.mapping.topic, self._listener(index), qos_profile_sensor_data)
        self.connect()
        self.create_timer(REPORT_S, self.report)

    def _value(self, name):
        return self.get_parameter(name).value

    # Connection

    def connect(self):
        """Connects to the loop; a later report tries again if that fails."""
        try:
            loop = orind.ControlLoop(self.name, self._value("address") or None)
        except (orind.OrindError, ValueError) as error:
            self.problem = str(error)
            return
        try:
            self._fit(loop)
        except ValueError:
            loop.close()
            raise
        self.loop, self.problem = loop, ""
        for part in self.parts:
            part.at = None
        if self.trigger == "timer":
            self.timer = self.create_timer(1 / (self._value("rate_hz") or loop.rate_hz), self.step)

    def _fit(self, loop):
        """Checks that mappings and tensors belong together; a single part is its whole input."""
        for kind, mappings, tensors in (("input", [part.mapping for part in self.parts], loop.inputs),
                                        ("output", self.results, loop.outputs)):
            names = {mapping.name for mapping in mappings}
            wrong = names - set(tensors) or (kind == "input" and set(tensors) - names)
            if wrong:
                raise ValueError(f"{kind} {sorted(wrong)[0]}: the control loop {self.name} has the {kind}s "
                                 f"{', '.join(tensors)}, and each input needs a topic")
        for name, tensor in loop.inputs.items():
            parts = [part for part in self.parts if part.mapping.name == name]
            if len(parts) == 1:
                parts[0].start, parts[0].size = 0, len(tensor.memory)

    def disconnect(self, problem):
        """Frees the loop after a failure."""
        self.problem = problem
        self.get_logger().error(problem)
        if self.timer is not None:
            self.destroy_timer(self.timer)
            self.timer = None
        if self.loop is not None:
            self.loop.close()
            self.loop = None

    # Steps

    def _listener(self, index):
        return lambda message: self.receive(index, message)

    def receive(self, index, message):
        """Copies a message into the shared memory."""
        if self.loop is None:
            return
        part = self.parts[index]
        memory = self.loop.inputs[part.mapping.name].memory
        try:
            values = part.mapping.read(message)
            self._place(index, len(values), len(memory))
        except (TypeError, ValueError) as error:
            self.problem = f"{part.mapping.topic}: {error}"
            return
        self.problem = ""
        memory[part.start:part.start + len(values)] = orind.Tensor.of(values).memory
        part.at = time.monotonic()
        if self.trigger == "message" and index == 0:
            self.step()

    def _place(self, index, size, total):
        """Finds the position of a part: after the earlier parts of the same input, by the sizes of their messages."""
        part = self.parts[index]
        if part.size is None:
            siblings = [one for one in self.parts if one.mapping.name == part.mapping.name]
            before = siblings[:siblings.index(part)]
            if any(one.size is None for one in before):
                raise ValueError("waits for the first message of the topic before it")
            part.start, part.size = sum(one.size for one in before), size
            if part is siblings[-1] and part.start + size != total:
                part.size = None
                raise ValueError(f"the topics of {part.mapping.name} have {part.start + size} values, not {total}")
        if size != part.size or part.start + size > total:
            raise ValueError(f"a message has {size} values, not {min(part.size, total - part.start)}")

    def stale(self):
        """Topics without a message for `max_age_s`."""
        limit = time.monotonic() - self._value("max_age_s")
        return [part.mapping.topic for part in self.parts if part.at is None or part.at < limit]

    def step(self):
        """Runs a step if all inputs are fresh, and publishes its outputs."""
        if self.loop is None or self.stale():
            return
        try:
            outputs = self.loop.step(timeout=self._value("timeout_s"))
        except (orind.StepFailed, orind.Timeout) as error:
            self.failed += 1
            self.problem = str(error)
            return
        except orind.OrindError as error:
            self.failed += 1
            self.disconnect(str(error))
            return
        self.steps += 1
        self.missed += self.loop.counts.last_s > self.loop.deadline_s
        for mapping, publisher in zip(self.results, self.publishers_):
            try:
                message = mapping.write(outputs[mapping.name].memory.tolist())
            except ValueError as error:
                self.problem = str(error)
                continue
            if hasattr(message, "header"):
                message.header.stamp = self.get_clock().now().to_msg()
            publisher.publish(message)

    # Diagnostics

    def report(self):
        """Publishes the state of the loop, and connects again after a failure."""
        if self.loop is None:
            try:
                self.connect()
            except ValueError as error:
                self.problem = str(error)
        status = DiagnosticStatus()
        status.name, status.hardware_id = f"{self.get_name()}: control loop {self.name}", "orind"
        status.level, status.message = self._level()
        status.values = [KeyValue(key=key, value=value) for key, value in self._values()]
        message = DiagnosticArray()
        message.header.stamp = self.get_clock().now().to_msg()
        message.status = [status]
        self.diagnostics.publish(message)
        self.reported = self.missed

    def _level(self):
        missed = self.missed - self.reported
        if self.loop is None or self.problem:
            return DiagnosticStatus.ERROR, self.problem or "not connected"
        if self.stale():
            return DiagnosticStatus.STALE, f"no recent message: {', '.join(self.stale())}"
        if missed:
            return DiagnosticStatus.WARN, f"{missed} steps later than the deadline of {self.loop.deadline_s * 1e6:.0f} us"
        return DiagnosticStatus.OK, "all steps within the deadline"

    def _values(self):
        values = [("steps", str(self.steps)), ("missed", str(self.missed)), ("failed", str(self.failed)),
                  ("missed since the last report", str(self.missed - self.reported))]
        if self.loop is not None:
            counts = self.loop.counts
            values += [("deadline_us", f"{self.loop.deadline_s * 1e6:.0f}"), ("last_us", f"{counts.last_s * 1e6:.0f}"),
                       ("worst_us", f"{counts.worst_s * 1e6:.0f}")]
        return values

    def destroy_node(self):
        """Frees the control loop for another client."""
        if self.loop is not None:
            self.loop.close()
            self.loop = None
        return super().destroy_node()


def main(args=None):
    """Runs the node until it is interrupted."""
    rclpy.init(args=args)
    node = ControlLoopNode()
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    try:
        executor.spin()
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        node.destroy_node()
        rclpy.try_shutdown()
