// A node of a neuraxis mesh in JavaScript: node client.mjs ROUTER MESSAGES
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

import { open } from "./zenoh.mjs";

const [NAME, MESH, PEER] = ["plain", "neuraxis/default", "robot"];
const JSON_TEXT = "application/json";
const KINDS = { stream: 0, state: 1, event: 2, bulk: 3 };
const nowNs = () => BigInt(Date.now()) * 1_000_000n;
const STARTED = nowNs(); // the incarnation: tells a restarted node from its predecessor

function envelope(sequence, kind = "stream", step = -1) {
  const head = Buffer.from(["n".charCodeAt(), "x".charCodeAt(), 2, KINDS[kind], ...Buffer.alloc(32)]);
  head.writeBigUInt64LE(STARTED, 4);
  head.writeBigUInt64LE(BigInt(sequence), 12);
  head.writeBigInt64LE(BigInt(step), 20);
  head.writeBigInt64LE(nowNs(), 28);
  return Buffer.concat([head, Buffer.from(NAME)]);
}

function text(value) { // MessagePack: str 8
  return Buffer.concat([Buffer.of(0xd9, Buffer.byteLength(value)), Buffer.from(value)]);
}

function integer(value) { // MessagePack: uint 64
  const bytes = Buffer.alloc(9, 0xcf);
  bytes.writeBigUInt64BE(BigInt(value), 1);
  return bytes;
}

function presence() { // role, host, process, incarnation and further roles, as MessagePack
  const [five, none] = [Buffer.of(0x95), Buffer.of(0x90)];
  const facts = [five, text(""), text(hostname()), integer(process.pid), integer(STARTED), none];
  return `${MESH}/@presence/${NAME}/${Buffer.concat(facts).toString("base64url")}`;
}

function add({ payload }) {
  const sum = JSON.parse(payload).reduce((total, each) => total + each, 0);
  return { payload: JSON.stringify(sum), encoding: JSON_TEXT };
}

const [, , router, messages] = process.argv;
const session = await open(router);
session.token(presence());
session.serve(`${MESH}/${NAME}/@serve/add/@from/**`, add);
session.subscribe(`${MESH}/${PEER}/pose`, ({ payload }, key) => console.log("received", key, payload.toString()));
const question = { payload: "21", encoding: JSON_TEXT, attachment: envelope(0) };
for (const reply of await session.get(`${MESH}/${PEER}/@serve/double/@from/${NAME}`, question))
  console.log("answer", reply.payload.toString());
for (let number = 0; number < Number(messages); number++) {
  const payload = JSON.stringify({ count: number });
  session.put(`${MESH}/${NAME}/count`, { payload, encoding: JSON_TEXT, attachment: envelope(number) });
  await sleep(100);
}
await session.close();
