"""What models need to be split by positions and by experts; functions of one core's part."""
