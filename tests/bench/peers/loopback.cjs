// Keeps a program that would listen at every address to 127.0.0.1: node --require loopback.cjs PROGRAM
const { Server } = require("net");
const listen = Server.prototype.listen;
Server.prototype.listen = function (port, ...more) {
  return typeof port === "number" ? listen.call(this, port, "127.0.0.1", ...more) : listen.call(this, port, ...more);
};
