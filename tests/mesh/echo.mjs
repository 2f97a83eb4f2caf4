// A program that sends back what it gets, for test_other_languages.py: node echo.mjs ROUTER TOKEN
import { open } from "../../docs/reference/clients/zenoh.mjs";

const MESH = "neuraxis/default";
const session = await open(process.argv[2]);
session.serve(`${MESH}/echo/@serve/same/@from/**`, (value) => value);
session.serve(`${MESH}/echo/@serve/wrong/@from/**`, () => {
  throw new Error("nothing goes: größe");
});
session.subscribe(`${MESH}/robot/*/**`, (value, key) => {
  session.put(key.replace("/robot/", "/echo/"), { payload: value.payload, encoding: value.encoding });
});
session.token(process.argv[3]);
