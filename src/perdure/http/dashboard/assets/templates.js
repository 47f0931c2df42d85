// What a new definition begins with: small ones that can be published as they are.

export const TEMPLATES = {
  machine: `machine: approval
description: A request that somebody approves or rejects.
initial: asked
states:
  asked:
    after: {P2D: expire}
    on:
      approve: approved
      reject: rejected
      expire: rejected
  approved: {final: true}
  rejected: {final: true}
`,
  graph: `graph: greeting
nodes:
  - {id: start, type: trigger}
  - {id: known, type: condition, data: {when: '\${ .trigger.name != null }'}}
  - {id: named, type: end, data: {result: '\${ "Hello, " + .trigger.name }'}}
  - {id: unnamed, type: end, data: {result: Hello}}
edges:
  - {source: start, target: known}
  - {source: known, target: named, sourceHandle: 'true'}
  - {source: known, target: unnamed, sourceHandle: 'false'}
`,
  document: `document: {dsl: '1.0.3', namespace: shop, name: reminder, version: '1.0.0'}
do:
  - remember: {set: {text: '\${ .text // "it is time" }'}}
  - pause: {wait: {minutes: 1}}
  - tell: {set: {told: '\${ .text }'}}
`,
};
