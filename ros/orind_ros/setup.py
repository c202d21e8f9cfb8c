"""Package orind_ros. The Python package `orind` (`pip install ./python`) is not in rosdep's list."""

from glob import glob

from setuptools import setup

setup(
    name="orind_ros",
    version="0.1.0",
    packages=["orind_ros"],
    data_files=[
        ("share/ament_index/resource_index/packages", ["resource/orind_ros"]),
        ("share/orind_ros", ["package.xml"]),
        ("share/orind_ros/launch", glob("launch/*.py")),
        ("share/orind_ros/config", glob("config/*.yaml")),
    ],
    install_requires=["setuptools"],
    zip_safe=True,
    maintainer="orind",
    maintainer_email="orind@users.noreply.github.com",
    description="Nodes for the orind daemon: chat, embeddings and control loops",
    license="MIT OR Apache-2.0",
    entry_points={"console_scripts": [
        "language = orind_ros.language:main",
        "control_loop = orind_ros.control_loop:main",
    ]},
)
