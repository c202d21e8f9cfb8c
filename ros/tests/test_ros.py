"""Nodes of `orind_ros` on a real daemon, with a stand-in of rclpy; interfaces with rosidl's parser if it is installed."""

import ast
import glob
import os
import re
import sys
import threading
import time
import unittest
import xml.etree.ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
ROS = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(ROS, "orind_ros"), os.path.join(ROS, "..", "python", "tests")]

import stand_in  # noqa: E402
import support  # noqa: E402

stand_in.install()

import orind  # noqa: E402
from geometry_msgs.msg import Twist  # noqa: E402
from orind_interfaces.action import Chat as ChatAction  # noqa: E402
from orind_interfaces.action import Embed as EmbedAction  # noqa: E402
from orind_interfaces.msg import ChatMessage  # noqa: E402
from orind_interfaces.srv import Chat, Embed  # noqa: E402
from orind_ros import control_loop, language  # noqa: E402
from orind_ros.mapping import Mapping  # noqa: E402
from sensor_msgs.msg import JointState  # noqa: E402
from std_msgs.msg import Float32, Float32MultiArray, Float64MultiArray  # noqa: E402
from stand_in import GRAPH, Parameter  # noqa: E402

try:
    import rosidl_adapter.parser as rosidl
except ImportError:
    rosidl = None


def setUpModule():
    support.daemon()


def overrides(**values):
    return dict(parameter_overrides=[Parameter(name, value=value) for name, value in values.items()])


def eventually(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not happen in time")
        time.sleep(0.005)


class Language(unittest.TestCase):
    def setUp(self):
        GRAPH.clear()
        self.daemon = support.daemon()
        self.node = language.LanguageNode(**overrides(address=self.daemon.socket, max_goals=2, embedding_model="embed"))
        self.addCleanup(self.node.destroy_node)
        self.hi = [ChatMessage(content="hi")]

    def load_embedding(self):
        path = os.path.join(self.daemon.folder, "ros.gguf")
        support.with_metadata(support.MODEL, path, "qwen3.pooling_type", 1)
        self.daemon.client.load(path, beside=True, name="embed", slots=2, context=64)
        self.addCleanup(self.daemon.client.unload, "embed")

    def goal(self, **fields):
        return GRAPH.actions["/orind/chat"].send_goal(ChatAction.Goal(messages=self.hi, **fields))

    def test_service_and_action_give_the_client_s_answer(self):
        whole = self.daemon.client.chat("hi", max_tokens=12, temperature=0)
        response = GRAPH.call("/orind/chat", Chat.Request(messages=self.hi, max_tokens=12, temperature=0.0))
        self.assertEqual((response.text, response.finish_reason), (whole.text, whole.finish_reason))
        self.assertEqual((response.failure.code, response.completion_tokens), ("", whole.usage.completion))
        goal = self.goal(max_tokens=12, temperature=0.0)
        state, result = goal.get()
        self.assertEqual((state, result.text), ("succeeded", whole.text))
        self.assertEqual("".join(part.text for part in goal.feedback), whole.text)
        self.assertGreater(len(goal.feedback), 1)

    def test_a_cancelled_goal_is_cancelled_in_the_daemon(self):
        for _ in range(3):
            goal = self.goal(max_tokens=1900)
            goal.wait_feedback()
            self.assertTrue(goal.cancel())
            state, result = goal.get()
            self.assertEqual((state, result.failure.code), ("canceled", ""))
            self.assertTrue(result.text)
            self.assertFalse(goal.cancel())
            eventually(lambda: not self.daemon.client.status()["requests"]["active"])

    def test_goals_beyond_the_limit_are_refused(self):
        goals = [self.goal(max_tokens=1900) for _ in range(2)]
        self.assertIsNone(self.goal())
        for goal in goals:
            goal.cancel()
            goal.get()
        self.assertEqual(self.goal(max_tokens=2).get()[0], "succeeded")

    def test_failures_have_the_daemon_s_code(self):
        response = GRAPH.call("/orind/chat", Chat.Request(messages=self.hi, temperature=9.0))
        self.assertEqual(response.failure.code, "invalid_value")
        self.assertIn("temperature", response.failure.message)
        state, result = self.goal(model="other").get()
        self.assertEqual((state, result.failure.code), ("aborted", "model_not_found"))
        self.assertTrue(GRAPH.call("/orind/chat", Chat.Request(messages=self.hi, json_schema="{")).failure.code)
        response = GRAPH.call("/orind/embed", Embed.Request(texts=["a"], model="tiny-qwen3-Q8_0"))
        self.assertEqual(response.failure.code, "unsupported_parameter")
        other = language.LanguageNode(**overrides(address="/nonexistent/s"))
        self.addCleanup(other.destroy_node)
        self.assertEqual(GRAPH.call("/orind/chat", Chat.Request(messages=self.hi)).failure.code, "ConnectError")

    def test_a_schema_constrains_the_answer(self):
        schema = '{"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}'
        response = GRAPH.call("/orind/chat", Chat.Request(messages=self.hi, json_schema=schema, temperature=0.0, max_tokens=100))
        self.assertIn('{"on":', response.text.replace(" ", ""))

    def test_embeddings(self):
        self.load_embedding()
        texts = [f"text {i}" for i in range(20)]
        rows = self.daemon.client.embed(texts, model="embed")
        response = GRAPH.call("/orind/embed", Embed.Request(texts=texts))
        self.assertEqual((response.dimensions, list(response.values)), (rows.shape[1], rows.memory.tolist()))
        goal = GRAPH.actions["/orind/embed"].send_goal(EmbedAction.Goal(texts=texts))
        state, result = goal.get()
        self.assertEqual((state, list(result.values)), ("succeeded", rows.memory.tolist()))
        self.assertEqual([part.done for part in goal.feedback], [16, 20])
        self.assertEqual(GRAPH.call("/orind/embed", Embed.Request()).dimensions, 0)
        goal = GRAPH.actions["/orind/embed"].send_goal(EmbedAction.Goal(texts=texts * 50))
        goal.wait_feedback()
        self.assertTrue(goal.cancel())
        state, result = goal.get()
        self.assertEqual(state, "canceled")
        self.assertLess(len(result.values), 1000 * result.dimensions)


class Loop(unittest.TestCase):
    INPUT = "observation=/joints:sensor_msgs/msg/JointState.position"
    OUTPUT = "action=/commands:std_msgs/msg/Float64MultiArray.data"

    def setUp(self):
        GRAPH.clear()
        self.daemon = support.daemon()
        self.observation, self.action = support.example()

    def start(self, **values):
        values = {"loop": "policy", "inputs": [self.INPUT], "outputs": [self.OUTPUT], "max_age_s": 60.0, **values}
        node = control_loop.ControlLoopNode(**overrides(**{"address": self.daemon.socket, **values}))
        self.addCleanup(node.destroy_node)
        self.node = node
        return node

    def connected(self, **values):
        node = self.start(**values)
        # The daemon notices the end of the previous client; a report connects again.
        eventually(lambda: node.loop is not None or node.report())
        return node

    def status(self):
        self.node.report()
        return GRAPH.sent["/diagnostics"][-1].status[0]

    def check(self, values):
        for got, want in zip(values, self.action):
            self.assertAlmostEqual(got, want, places=5)

    def test_messages_step_the_loop(self):
        self.connected(trigger="message")
        self.assertEqual(self.status().level, b"\x03")  # stale
        for _ in range(5):
            GRAPH.publish("/joints", JointState(position=self.observation))
        self.assertEqual(len(GRAPH.sent["/commands"]), 5)
        self.check(GRAPH.sent["/commands"][-1].data)
        status = self.status()
        self.assertEqual((status.level, status.hardware_id), (b"\0", "orind"))
        values = {one.key: one.value for one in status.values}
        self.assertEqual((values["steps"], values["missed"], values["deadline_us"]), ("5", "0", "2000000"))

    def test_a_timer_steps_the_loop(self):
        self.connected(rate_hz=500.0)
        GRAPH.publish("/joints", JointState(position=self.observation))
        eventually(lambda: len(GRAPH.sent["/commands"]) >= 10)
        self.check(GRAPH.sent["/commands"][-1].data)

    def test_missed_deadlines_are_warnings(self):
        self.connected(loop="awake", trigger="message")
        GRAPH.publish("/joints", JointState(position=self.observation))
        status = self.status()
        self.assertEqual((status.level, status.message), (b"\x01", "1 steps later than the deadline of 1 us"))
        self.assertEqual(self.status().level, b"\0")

    def test_several_topics_make_an_input_and_fields_take_an_output(self):
        self.connected(trigger="message", outputs=["action=/twist:geometry_msgs/msg/Twist.linear.x,linear.y,angular.x,angular.z"],
                       inputs=["observation=/arm:sensor_msgs/msg/JointState.position,velocity",
                               "observation=/gripper:std_msgs/msg/Float32MultiArray.data",
                               "observation=/one:std_msgs/msg/Float32.data"])
        GRAPH.publish("/one", Float32(data=1.0))
        self.assertIn("waits for the first message", self.status().message)
        GRAPH.publish("/arm", JointState(position=self.observation[:4], velocity=self.observation[4:8]))
        GRAPH.publish("/gripper", Float32MultiArray(data=self.observation[8:11]))
        GRAPH.publish("/one", Float32(data=self.observation[11]))
        GRAPH.publish("/arm", JointState(position=self.observation[:4], velocity=self.observation[4:8]))
        twist = GRAPH.sent["/twist"][-1]
        self.check([twist.linear.x, twist.linear.y, twist.angular.x, twist.angular.z])
        GRAPH.publish("/gripper", Float32MultiArray(data=[1.0]))
        self.assertIn("/gripper: a message has 1 values, not 3", self.status().message)

    def test_messages_of_a_wrong_size_are_errors(self):
        self.connected(trigger="message")
        GRAPH.publish("/joints", JointState(position=self.observation[1:]))
        status = self.status()
        self.assertEqual((status.level, GRAPH.sent["/commands"]), (b"\x02", []))
        self.assertIn("11 values, not 12", status.message)
        GRAPH.publish("/joints", JointState(position=self.observation))
        self.assertEqual(self.status().level, b"\0")

    def test_old_messages_stop_the_loop(self):
        self.connected(max_age_s=0.1, rate_hz=200.0)
        GRAPH.publish("/joints", JointState(position=self.observation))
        eventually(lambda: GRAPH.sent["/commands"])
        time.sleep(0.2)
        self.assertEqual((self.status().level, self.status().message), (b"\x03", "no recent message: /joints"))

    def test_a_lost_daemon_is_reported_and_connected_again(self):
        other = support.Daemon(support.LOOPS)
        self.addCleanup(other.stop)
        node = self.connected(address=other.socket, trigger="message")
        GRAPH.publish("/joints", JointState(position=self.observation))
        other.kill()
        for _ in range(2):
            GRAPH.publish("/joints", JointState(position=self.observation))
        self.assertEqual(self.status().level, b"\x02")
        self.assertIsNone(node.loop)
        other.start()
        eventually(lambda: node.loop is not None or node.report(), 30)
        before = len(GRAPH.sent["/commands"])
        GRAPH.publish("/joints", JointState(position=self.observation))
        self.assertEqual(len(GRAPH.sent["/commands"]), before + 1)

    def test_wrong_parameters_name_the_form(self):
        for values, reason in [({"inputs": ["x"]}, "write NAME=TOPIC"), ({"loop": ""}, "required"),
                               ({"inputs": ["observation=/a:no_msgs/msg/No.data"]}, "no message no_msgs/msg/No"),
                               ({"inputs": ["observation=/a:std_msgs/msg/Float32.other"]}, "no field other"),
                               ({"trigger": "x"}, "timer or message")]:
            with self.assertRaises(ValueError) as caught:
                self.start(**values)
            self.assertIn(reason, str(caught.exception))
        eventually(lambda: self.try_names() is not None)
        self.assertIn("observation", self.try_names())

    def try_names(self):
        try:
            self.start(inputs=["other=/a:std_msgs/msg/Float32.data"]).destroy_node()
        except ValueError as error:
            return str(error)
        return None


class Programs(unittest.TestCase):
    def test_main_ends_with_the_shutdown(self):
        GRAPH.clear()
        thread = threading.Thread(target=language.main)
        thread.start()
        eventually(lambda: GRAPH.services)
        stand_in.ENDED.set()
        thread.join(10)
        self.assertFalse(thread.is_alive())

    def test_mappings_round_trip(self):
        mapping = Mapping("action=/c:std_msgs/msg/Float64MultiArray.data")
        self.assertEqual(mapping.read(mapping.write([1.0, 2.0])), [1.0, 2.0])
        with self.assertRaises(ValueError):
            Mapping("action=/c:geometry_msgs/msg/Twist.linear.x").write([1.0, 2.0])
        self.assertIsInstance(Mapping("a=/c:geometry_msgs/msg/Twist.linear.x").write([1.0]), Twist)
        self.assertIsInstance(mapping.write([1.0]), Float64MultiArray)


class Packages(unittest.TestCase):
    def test_names_versions_and_files_agree(self):
        for package in ("orind_interfaces", "orind_ros"):
            folder = os.path.join(ROS, package)
            tree = xml.etree.ElementTree.parse(os.path.join(folder, "package.xml")).getroot()
            self.assertEqual((tree.findtext("name"), tree.findtext("version")), (package, orind.__version__))
        with open(os.path.join(ROS, "orind_ros", "setup.py")) as file:
            setup = file.read()
        self.assertIn(f'version="{orind.__version__}"', setup)
        for module, function in re.findall(r"= orind_ros\.(\w+):(\w+)", setup):
            self.assertTrue(callable(getattr({"language": language, "control_loop": control_loop}[module], function)))
        with open(os.path.join(ROS, "orind_ros", "config", "example.yaml")) as file:
            entries = re.findall(r'"(\w+=[^"]+)"', file.read())
        self.assertEqual([Mapping(entry).name for entry in entries], ["observation", "action"])
        with open(os.path.join(ROS, "orind_interfaces", "CMakeLists.txt")) as file:
            listed = set(re.findall(r"(?:msg|srv|action)/\w+\.\w+", file.read()))
        there = {os.path.relpath(path, os.path.join(ROS, "orind_interfaces"))
                 for kind in ("msg", "srv", "action") for path in glob.glob(os.path.join(ROS, "orind_interfaces", kind, "*"))}
        self.assertEqual(listed, there)
        for path in glob.glob(os.path.join(ROS, "orind_ros", "**", "*.py"), recursive=True):
            with open(path) as file:
                ast.parse(file.read(), path, feature_version=(3, 10))

    @unittest.skipIf(rosidl is None, "rosidl_adapter is not installed")
    def test_rosidl_parses_the_interfaces(self):
        parsers = {"msg": rosidl.parse_message_file, "srv": rosidl.parse_service_file, "action": rosidl.parse_action_file}
        count = 0
        for kind, parse in parsers.items():
            for path in glob.glob(os.path.join(ROS, "orind_interfaces", kind, "*")):
                parse("orind_interfaces", path)
                count += 1
        self.assertEqual(count, 6)


if __name__ == "__main__":
    unittest.main()
