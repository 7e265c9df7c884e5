const fs = require("fs");
const found = [];
if (typeof process.send === "function") found.push("process.send");
if (process.env.NODE_CHANNEL_FD) found.push("NODE_CHANNEL_FD");
let descriptors = [];
try { descriptors = fs.readdirSync("/proc/self/fd"); } catch {}
for (const fd of descriptors) {
  let target = "";
  try { target = fs.readlinkSync("/proc/self/fd/" + fd); } catch { continue; }
  if (Number(fd) > 2 && target.startsWith("socket:")) found.push(`${fd}->${target}`);
}
console.log(found.length ? `PROBE CC-18 BROKEN: ${found}` : "PROBE CC-18 HELD");
