"""`orind.ControlLoop` and `orind.Tensor`: steps of a real daemon, shared memory, hostile servers."""

import array
import os
import signal
import time
import unittest

import support
from support import Impostor, needs_numpy, numpy, orind


class Loop(unittest.TestCase):
    def setUp(self):
        self.daemon = support.daemon()
        self.observation, self.action = support.example()

    def open(self, name="policy"):
        end = time.monotonic() + 10
        while True:
            try:
                return self.daemon.client.control_loop(name)
            except orind.APIError as error:  # the daemon notices the end of the previous client
                if "in use" not in error.message or time.monotonic() > end:
                    raise
                time.sleep(0.01)

    def check(self, outputs):
        for got, want in zip(outputs["action"].row(0).tolist(), self.action):
            self.assertAlmostEqual(got, want, places=5)

    def test_steps(self):
        with self.open() as loop:
            self.assertEqual((loop.rate_hz, loop.deadline_s), (200, 2))
            self.assertEqual(loop.inputs["observation"].shape, (1, 12))
            self.check(loop.step({"observation": self.observation}))
            before = loop.outputs["action"].tolist()
            self.assertNotEqual(loop.step({"observation": 0})["action"].tolist(), before)
            loop.inputs["observation"].set([self.observation])
            for _ in range(10):
                self.check(loop.step())
            self.assertEqual(loop.counts[:2], (12, 0))
            self.assertTrue(0 < loop.counts.last_s <= loop.counts.worst_s < 2)
            with self.assertRaises(KeyError):
                loop.step({"other": 0})
            with self.assertRaises(ValueError):
                loop.step({"observation": [1, 2]})
            with self.assertRaises(orind.OrindError):
                loop.wait()
        with self.assertRaises(orind.Closed):
            loop.step()

    def test_a_spinning_client_counts_missed_deadlines(self):
        with self.open("awake") as loop:
            for _ in range(20):
                self.check(loop.step({"observation": self.observation}, spin=True))
            self.assertEqual(loop.counts[:2], (20, 20))

    def test_one_client_at_a_time(self):
        with self.open():
            with self.assertRaises(orind.APIError) as caught:
                self.daemon.client.control_loop("policy")
            self.assertIn(str(os.getpid()), str(caught.exception))
        self.open().close()

    def test_unknown_loops_and_sockets(self):
        with self.assertRaises(orind.APIError):
            self.daemon.client.control_loop("other")
        with self.assertRaises(orind.ConnectError):
            orind.ControlLoop("policy", "/nonexistent/s")
        with self.assertRaises(ValueError):
            orind.ControlLoop("a\nb", self.daemon.socket)

    def test_a_lost_daemon_ends_the_wait(self):
        other = support.Daemon(support.LOOPS)
        self.addCleanup(other.stop)
        loop = other.client.control_loop("policy")
        self.addCleanup(loop.close)
        loop.step()
        other.kill()
        with self.assertRaises(orind.ConnectError):
            for _ in range(3):
                loop.step(timeout=5)

    def test_a_stopped_daemon_meets_the_time_limit(self):
        other = support.Daemon(support.LOOPS)
        self.addCleanup(other.stop)
        with other.client.control_loop("policy") as loop:
            loop.step()
            other.pause()
            with self.assertRaises(orind.Timeout):
                loop.step({"observation": self.observation}, timeout=0.1)
            with self.assertRaises(orind.Timeout):
                loop.start()
            other.process.send_signal(signal.SIGCONT)
            loop.wait(10)
            self.check(loop.outputs)
            self.assertEqual(loop.counts.steps, 2)

    @needs_numpy
    def test_numpy_and_dlpack_share_the_memory(self):
        with self.open() as loop:
            inputs, action = loop.inputs["observation"].numpy(), loop.outputs["action"]
            views = [action.numpy(), numpy.asarray(action), numpy.from_dlpack(action)]
            inputs[0] = self.observation
            loop.step()
            for view in views:
                numpy.testing.assert_allclose(view, [self.action], atol=1e-5)
                self.assertTrue(numpy.shares_memory(view, views[0]))
            self.assertEqual(loop.inputs["observation"].__dlpack_device__(), (1, 0))
            action.__dlpack__(stream=None, max_version=(1, 0))  # a capsule without a consumer
            with self.assertRaises(BufferError):
                action.__dlpack__(dl_device=(2, 0))
        # Arrays outlive the loop.
        numpy.testing.assert_allclose(views[2], [self.action], atol=1e-5)

    def test_descriptors_are_closed(self):
        def opened():
            return len(os.listdir("/proc/self/fd"))
        self.open().close()
        before = opened()
        for _ in range(5):
            self.open().close()
            for name in ["other", "policy"]:
                try:
                    orind.ControlLoop(name, self.daemon.socket).close()
                except orind.APIError:
                    pass
        self.assertLessEqual(opened(), before)

    def test_wrong_servers(self):
        for line in [b"", b"{", b"[]\n", b"{}\n", b'{"error": {"message": "no"}}\n', b"x" * 4096 + b"\n"]:
            with Impostor(line) as server:
                os.rename(server.path, server.path + ".lanes")
                with self.assertRaises(orind.OrindError, msg=line):
                    orind.ControlLoop("policy", server.path)


class Tensors(unittest.TestCase):
    def test_values_and_shapes(self):
        for values, shape in [(1, ()), ([1, 2], (2,)), ([[1, 2], [3, 4], [5, 6]], (3, 2)), ([], (0,)), ([[], []], (2, 0)),
                              ([[[1]], [[2]]], (2, 1, 1))]:
            tensor = orind.Tensor.of(values)
            self.assertEqual((tensor.shape, tensor.tolist()), (shape, values))
            self.assertEqual(orind.Tensor(tensor.copy().memory, shape).tolist(), values)
        self.assertEqual(orind.Tensor.of(array.array("d", [1, 2])).tolist(), [1, 2])
        self.assertEqual(orind.Tensor.of(b"\x01\x02").tolist(), [1, 2])
        for wrong in [[[1], [1, 2]], [[1], 2], "text", ["a"], object()]:
            with self.assertRaises((ValueError, TypeError), msg=wrong):
                orind.Tensor.of(wrong)
        with self.assertRaises(ValueError):
            orind.Tensor(memoryview(bytearray(8)), [3])
        with self.assertRaises(ValueError):
            orind.Tensor(memoryview(bytearray(8)), [-1, -2])

    def test_a_buffer_of_floats_is_shared(self):
        source = array.array("f", [1, 2, 3])
        tensor = orind.Tensor.of(source)
        source[0] = 9
        self.assertEqual(tensor.tolist(), [9, 2, 3])
        tensor.set(5)
        self.assertEqual(list(source), [5, 5, 5])

    @needs_numpy
    def test_arrays_of_every_type(self):
        for kind in ["f2", "f4", "f8", "i1", "u1", "i4", "i8", "?", ">f4"]:
            for shape in [(), (3,), (2, 3), (0, 3)]:
                values = numpy.ones(shape, kind)
                tensor = orind.Tensor.of(values)
                self.assertEqual((tensor.shape, tensor.tolist()), (shape, values.astype("f4").tolist()))
                numpy.testing.assert_array_equal(numpy.asarray(tensor), values)
        with self.assertRaises(ValueError):
            orind.Tensor.of(numpy.array(["a"]))
        fixed = numpy.ones(3, "f4")
        fixed.flags.writeable = False
        with self.assertRaises(BufferError):
            orind.Tensor.of(fixed).__dlpack__()


if __name__ == "__main__":
    unittest.main()
