// An external worker in Node.js (18 or later, no packages): it asks for letters, prints them, says what became of them.
//
//     node worker.mjs ADDRESS [API-KEY]
const [address, key] = process.argv.slice(2);
const headers = { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };

async function say(what, body) {
  const answer = await fetch(`${address}/v1/external/${what}`, { method: "POST", headers, body: JSON.stringify(body) });
  if (answer.status === 204) return null;
  const told = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(told.detail), { status: answer.status });
  return told;
}

async function print(name, text, signal) {
  if (!name) throw Object.assign(new Error("a letter needs a name"), { name: "NoName", permanent: true });
  console.log(`prints for ${name}: ${text}`);
  signal.throwIfAborted(); // whatever takes long should look now and then whether it is still wanted
  return { pages: 1, by: "node" };
}

async function perform(task) {
  const stop = new AbortController();
  // Three signs of life in the time of a lease; the answer tells when the workflow no longer wants the letter.
  const beats = setInterval(async () => {
    try {
      if ((await say("heartbeat", { token: task.token })).cancelled) stop.abort();
    } catch (error) {
      if (error.status === 409) stop.abort(); // somebody else does it by now
    }
  }, 10_000);
  try {
    const result = await print(...task.args, stop.signal);
    await say("complete", { token: task.token, result });
  } catch (error) {
    if (error.status === 409 || stop.signal.aborted) return console.log(`dropped: ${error.message}`);
    await say("fail", { token: task.token, type: error.name, message: error.message, retry: !error.permanent });
  } finally {
    clearInterval(beats);
  }
}

console.log("worker.mjs is ready");
while (true) {
  try {
    const { tasks } = await say("poll", { queue: "printers", limit: 5, wait: "30s", lease: "30s", worker: "node" });
    await Promise.all(tasks.map(perform));
  } catch (error) {
    console.error(error.message); // the API is away for a moment: what was not answered is given out again
    await new Promise((done) => setTimeout(done, 1000));
  }
}
