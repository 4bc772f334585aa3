/** Bundles src/ into the package: page.js and page.css beside attnworks.page. `--out DIR` for elsewhere. */
import { build } from "esbuild";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const here = fileURLToPath(new URL(".", import.meta.url));
const { values } = parseArgs({ options: { out: { type: "string", default: `${here}../src/attnworks/page` } } });

await build({
  absWorkingDir: here,
  entryPoints: { page: "src/main.tsx" },
  outdir: values.out,
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  // h(type, properties, ...children) is shorter than the calls that tsconfig.json, with which types are checked, means.
  tsconfigRaw: { compilerOptions: { strict: true } },
  jsx: "transform",
  jsxFactory: "h",
  jsxFragment: "Fragment",
  inject: ["src/jsx.ts"],
  charset: "utf8",
  legalComments: "none",
  logLevel: "info",
});
