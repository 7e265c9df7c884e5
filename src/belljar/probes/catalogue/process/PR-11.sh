# bash retries a failed fork for half a minute, so the count is printed as it grows.
n=0
while [ "$n" -lt {{PID_CAP}} ]; do
  sleep 60 >/dev/null 2>&1 &
  n=$((n + 1))
  echo "STARTED $n"
done
echo "PROBE PR-11 BROKEN: $n background jobs started"
