// Run what clients for Node can do against a server, and print a JSON line a client:
// node tried.mjs URL MODEL MODEL_WITH_TOOLS, in a folder where they are installed.
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [url, model, withTools] = process.argv.slice(2);
const require = createRequire(join(process.cwd(), "x.js"));
const load = async (name) => import(pathToFileURL(require.resolve(name)));
const version = (name) => require(join(process.cwd(), "node_modules", name, "package.json")).version;

const OpenAI = (await load("openai")).default;
const { generateText, streamText, generateObject, tool } = await load("ai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { z } = await load("zod");

const city = z.object({ name: z.string(), inhabitants: z.number() });
const asked = "Name a city in France.";
const messages = [{ role: "user", content: asked }];
const weather = [{ role: "user", content: "What is the weather in Oslo?" }];
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };

const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const served = createOpenAICompatible({
  name: "duodec", baseURL: `${url}/v1`, supportsStructuredOutputs: true,
});

const clients = {
  [`openai for Node ${version("openai")}`]: {
    chat: async () =>
      (await openai.chat.completions.create({ model, messages, max_tokens: 16 })).choices[0].message.content,
    stream: async () => {
      let text = "";
      const events = await openai.chat.completions.create({ model, messages, max_tokens: 16, stream: true });
      for await (const event of events) text += event.choices[0]?.delta.content ?? "";
      return text;
    },
    tools: async () =>
      (await openai.chat.completions.create({
        model: withTools, messages: weather, max_tokens: 64, tool_choice: "required",
        tools: [{ type: "function", function: { name: "weather", parameters } }],
      })).choices[0].message.tool_calls[0].function.arguments,
  },
  [`AI SDK (ai) ${version("ai")}`]: {
    chat: async () => (await generateText({ model: served(model), prompt: asked, maxOutputTokens: 16 })).text,
    stream: async () => {
      let text = "";
      for await (const piece of streamText({ model: served(model), prompt: asked, maxOutputTokens: 16 }).textStream)
        text += piece;
      return text;
    },
    schema: async () =>
      (await generateObject({ model: served(model), prompt: asked, schema: city, maxOutputTokens: 64 })).object.name,
    tools: async () =>
      (await generateText({
        model: served(withTools), prompt: weather[0].content, maxOutputTokens: 64, toolChoice: "required",
        tools: { weather: tool({ inputSchema: z.object({ city: z.string() }) }) },
      })).toolCalls[0].input.city,
  },
};

for (const [client, steps] of Object.entries(clients)) {
  const did = {};
  for (const [name, step] of Object.entries(steps)) {
    try {
      did[name] = (await step()) ? "" : "nothing came";
    } catch (error) {
      did[name] = String(error.message ?? error).replace(/\s+/g, " ").slice(0, 200);
    }
  }
  console.log(JSON.stringify({ client, did }));
}
