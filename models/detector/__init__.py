"""Objects in images, found in two stages: Faster R-CNN."""
