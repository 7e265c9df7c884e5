"""What Linux offers to build walls from, one file per kernel topic; shared by the engines."""
