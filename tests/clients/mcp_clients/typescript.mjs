// The official TypeScript client: connects by a URL, or by starting the command that follows, and says what it met.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [where, ...args] = process.argv.slice(2);
const transport = where.startsWith("http")
  ? new StreamableHTTPClientTransport(new URL(where))
  : new StdioClientTransport({ command: where, args, env: process.env });
const client = new Client({ name: "k8e-tests", version: "1" });
await client.connect(transport);

const { tools } = await client.listTools();
const ran = await client.callTool({ name: "sandbox_run", arguments: { code: "print(6 * 7)", language: "python" } });
const told = [];
const session_id = ran.structuredContent.session_id;
const goingOn = [];
// The command goes on only when each piece has been heard: the last one may come with the answer, and then is not told.
const heard = (progress) => {
  told.push(progress);
  const path = { session_id, path: `heard-${told.length}`, content: "" };
  goingOn.push(client.callTool({ name: "sandbox_write_file", arguments: path }));
};
const untilHeard = (number) => `until [ -e heard-${number} ]; do sleep 0.05; done`;
const streamed = await client.callTool(
  {
    name: "sandbox_exec_stream",
    arguments: { session_id, command: `echo 1; ${untilHeard(1)}; echo 2; ${untilHeard(2)}; echo 3` },
  },
  undefined,
  { onprogress: heard },
);
await Promise.all(goingOn);
await client.ping();
// Too long for one answer: its beginning, then page by page from the link.
const long = await client.callTool({ name: "sandbox_run", arguments: { code: "seq 20000" } });
let counted = long.structuredContent.stdout.split("\n[…")[0];
let longest = long.content[0].text.length;
let uri = long.content.find((block) => block.type === "resource_link").uri;
while (uri) {
  const [page, next] = (await client.readResource({ uri })).contents;
  counted += page.text;
  longest = Math.max(longest, page.text.length);
  uri = next?.uri;
}
console.log(
  JSON.stringify({
    server: client.getServerVersion().name,
    tools: tools.map((tool) => tool.name),
    stdout: ran.structuredContent.stdout,
    streamed: streamed.content[0].text,
    progress: told.length,
    counted,
    longest,
  }),
);
await client.close();
