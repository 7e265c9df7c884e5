const crypto = require("crypto");
const hex = (bytes) => Buffer.from(bytes).toString("hex");
console.log("VALUE mathrandom", Math.random());
console.log("VALUE uuid", crypto.randomUUID());
console.log("VALUE bytes", hex(crypto.randomBytes(8)));
console.log("VALUE webcrypto", hex(crypto.webcrypto.getRandomValues(new Uint8Array(8))));
