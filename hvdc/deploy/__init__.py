"""An artifact onto a phone: the way there (`adb`), what is checked first, what is sent, what is tried afterwards."""
