"""Starts both nodes with a file of parameters: ros2 launch orind_ros orind.launch.py params:=FILE."""

import os

from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node


def generate_launch_description():
    example = os.path.join(get_package_share_directory("orind_ros"), "config", "example.yaml")
    params = LaunchConfiguration("params")
    return LaunchDescription([
        DeclareLaunchArgument("params", default_value=example),
        Node(package="orind_ros", executable="language", name="orind", parameters=[params]),
        Node(package="orind_ros", executable="control_loop", name="policy", parameters=[params]),
    ])
